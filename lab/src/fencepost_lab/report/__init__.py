"""How an outcome is shown: claims, tables, plots and pages."""
