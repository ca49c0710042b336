"""See, predict and steady how fast every neuron of a network turns."""
