"""The facts that an option states about itself, for plans and checks."""
