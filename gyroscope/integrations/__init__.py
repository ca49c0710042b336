"""Thin adapters to other tools and trainers, each imported only when it is used.

`LogSink` makes any object with `log(scalars, step)` a sink of the tracker:

    gyro.Tracker(model, optimizer, sinks=[LogSink(my_logger)])
"""
