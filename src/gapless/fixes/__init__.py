"""Write the change that removes a wait into the user's source, and prove it by another run."""
