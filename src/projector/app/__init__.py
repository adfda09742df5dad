"""A local page that holds a job or a deployment: controls on one side, answers on the other."""
