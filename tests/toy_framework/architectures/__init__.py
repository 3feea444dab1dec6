"""Networks of the toy framework, a module for each model."""
