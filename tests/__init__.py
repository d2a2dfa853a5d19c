"""The suite: unit (pure cores), integration (real processes), conformance (others' clients), chaos (failures)."""
