"""Prove an edit: run the project before and after it, and compare all that the two runs show."""

from gapless.fixes.proof.project import ProjectVersion, ScriptProject
from gapless.fixes.proof.proving import ProofOptions, Prover, prove, prove_edits

__all__ = ["ProjectVersion", "ProofOptions", "Prover", "ScriptProject", "prove", "prove_edits"]
