"""What is true for one format each. A format sees of `bridge` only the model, the ports and the errors."""
