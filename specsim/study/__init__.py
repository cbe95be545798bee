"""Many runs: grids, executors, stores, validations."""
