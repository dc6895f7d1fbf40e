"""Formats: documents and key layouts; the only place that knows versions."""
