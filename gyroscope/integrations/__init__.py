"""Thin adapters to other tools and trainers, each imported only when it is used.

Any object with `log(scalars, step)` is a sink of the tracker by `LogSink`:

    gyro.Tracker(model, optimizer, sinks=[LogSink(my_logger)])

Composer needs no adapter: its `OptimizerMonitor` calls our optimizers, by `gyroscope.optim.parameter_metrics`.
"""
