"""The papers, one file per figure, table or theorem: what it claims, and what is measured here.

    gyroscope lab list
    gyroscope lab run smd/fig4
    gyroscope lab show smd/fig4

An experiment is a module `lab/<paper>/<name>.py`; its id is `<paper>/<name>`. Two that differ in their settings alone
share a module, which has both names. The papers are `re` (Rotational Equilibrium), `smd` (Spherical Motion Dynamics),
`sp` (Spherical Perspective), `ct` (Continuous-Time Adam) and `beyond`.
"""
