"""The columnar operators: each a picklable logic, and the living part that it builds for one task."""
