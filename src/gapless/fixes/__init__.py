"""Write the change that removes a wait into the user's source, and prove it by another run.

`planning.plan_fixes` turns a session into `Fix`es: for each place that waits it asks the `rewrites` for the
place's rule, of which each is a module, written with what `editing` has. `patches` turns fixes into a diff,
`trial` keeps those that `proof` passes.
"""
