"""The bench of advice: bad and good trainings, and the same trainings after what the findings say is followed."""
