"""Checks of the library from outside: public names, real libraries, other processes. One file per check."""
