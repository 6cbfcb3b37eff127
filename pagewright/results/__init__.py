"""What machines printed -> test results, figures, tables and pages."""
