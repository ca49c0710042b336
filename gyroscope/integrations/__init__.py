"""Thin adapters to other tools and trainers, each imported only when it is used.

Anything that can be called with a step and named numbers is a sink of the tracker already:

    gyro.Tracker(model, optimizer, sinks=[lambda step, scalars: my_logger.log(scalars, step)])

Composer needs no adapter: its `OptimizerMonitor` asks our optimizers, by `gyroscope.optim.parameter_metrics`.
"""
