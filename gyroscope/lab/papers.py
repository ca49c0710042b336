"""The figures and tables of the papers that no file here shows yet, with what they claim and what they would need."""

# The papers by the name of their folder.
PAPERS = {
    "re": "Rotational Equilibrium (Kosson et al. 2024)",
    "smd": "Spherical Motion Dynamics (Wan et al. 2020)",
    "sp": "Spherical Perspective (Roburin et al. 2020)",
    "ct": "Continuous-Time Adam",
    "beyond": "Beyond the papers",
}

DRAWING = "a drawing"
SETTINGS = "a list of settings"
TODO = "not implemented"

# Id -> what is claimed, and why it cannot be run. A file of the same id takes the place of its line here.
NOT_IMPLEMENTED: dict[str, tuple[str, str]] = {
    "re/fig1": ("Angular updates of all normalised neurons meet at one value", DRAWING),
    "re/fig2": ("Equilibrium seen as balance of norm, and as a random walk", DRAWING),
    "re/fig3": ("At constant lr·wd accuracy has an optimum; the rotation is as predicted", f"{TODO}: needs CIFAR-10"),
    "re/fig4": ("Adam+L2 rotates its layers unequally and loses to AdamW", f"{TODO}: needs CIFAR-10"),
    "re/fig5": ("Rotational SGDM needs less tuning and no warmup", f"{TODO}: needs CIFAR-100, ImageNet"),
    "re/fig6": ("The norm balances a gradient part and a decay part", DRAWING),
    "re/fig7": ("The same balance for a total update", DRAWING),
    "re/fig9": ("The random walk describes convolutions of a ResNet-20", f"{TODO}: needs CIFAR-10"),
    "re/fig10": ("The random walk describes linear layers of a small GPT", f"{TODO}: needs a text corpus"),
    "re/fig11": ("Scale-sensitive layers follow an effective decay", f"{TODO}: needs CIFAR-10"),
    "re/fig12": ("Imbalanced rotation costs accuracy", f"{TODO}: needs CIFAR-10"),
    "re/fig13": ("A GPT's perplexity has an optimum at constant lr·wd", f"{TODO}: needs a text corpus"),
    "re/fig14": ("AdamW over-rotates before equilibrium, its rotational variant does not", f"{TODO}: needs ImageNet"),
    "re/fig15": ("Rotational variants tolerate beta, centring and granularity", f"{TODO}: needs CIFAR-10, text"),
    "re/table2": ("Rotational AdamW matches AdamW with the same settings", f"{TODO}: needs seven data sets"),
    "re/table3": ("Rotational SGDM and Lion match theirs", f"{TODO}: needs CIFAR-10, a text corpus"),
    "re/table4": ("Set-ups of the experiments", SETTINGS),
    "re/table5": ("Set-ups of the sensitivity study", SETTINGS),
    "smd/fig1": ("Decay pulls in, the gradient pushes out", DRAWING),
    "smd/fig2": ("Norm and rotation of a ResNet-50 layer meet their predictions", f"{TODO}: needs ImageNet"),
    "smd/fig3": ("Rescaling the norms at a drop of lr keeps equilibrium", f"{TODO}: needs ImageNet, COCO"),
    "smd/fig6": ("Unit gradient norms and h in the multi-stage schedule", f"{TODO}: needs ImageNet"),
    "smd/fig7": ("Rotation adds up over small batches, against linear scaling", f"{TODO}: needs ImageNet"),
    "smd/fig8": ("Gradient norms do not grow in proportion to the batch", f"{TODO}: needs ImageNet"),
    "smd/fig9": ("Rotation of MobileNet-V2 and ShuffleNet-V2+ is as predicted", f"{TODO}: needs ImageNet"),
    "smd/table1": ("Rescaling leaves ImageNet accuracy as it is", f"{TODO}: needs ImageNet"),
    "smd/table2": ("Rescaling costs a little on COCO", f"{TODO}: needs COCO"),
    "sp/fig1": ("A step of SGD seen on the sphere", DRAWING),
    "sp/fig2": ("Radial parts, deformation and past gradients on the sphere", DRAWING),
    "sp/fig3": ("A⟨c,u⟩ stays far below 1 in a ResNet20", f"{TODO}: needs CIFAR-10"),
    "sp/fig4": ("η_e‖c⊥‖ stays small in a ResNet20", f"{TODO}: needs CIFAR-10"),
    "sp/fig5": ("The Taylor variable of Theorem 4 stays small in a ResNet20", f"{TODO}: needs CIFAR-10"),
    "sp/table2": ("Adam-SRT beats Adam in accuracy", f"{TODO}: needs CIFAR, SVHN, ImageNet"),
    "sp/table3": ("Best learning rates and momentum", SETTINGS),
    "sp/table4": ("Best L2 and order-2 moment factors", SETTINGS),
    "sp/table5": ("SGD-MRT is on a par with SGD-M", f"{TODO}: needs CIFAR, SVHN, ImageNet"),
    "ct/fig4": ("Test loss diverges where C < 0", f"{TODO}: needs a text corpus, 128 runs"),
    "ct/fig6": ("2-Adam beats Adam on CIFAR-10", f"{TODO}: needs CIFAR-10"),
    "ct/fig10": ("The CNN of Figure 6", DRAWING),
    "ct/fig12": ("Figure 4 along the normal curve through (0.95, 0.9)", f"{TODO}: needs a text corpus, 128 runs"),
    "ct/fig13": ("Figure 4 along a level curve", f"{TODO}: needs a text corpus, 128 runs"),
    "ct/fig14": ("Annealing the learning rate does not repair C < 0", f"{TODO}: needs a text corpus"),
    "ct/fig15": ("The naive strategy of k-Adam fails for large k", f"{TODO}: needs CIFAR-10"),
    "ct/fig16": ("2-Adam is best for language too", f"{TODO}: needs a text corpus, 30M parameters"),
}
