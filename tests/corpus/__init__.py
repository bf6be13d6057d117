"""What tests and measurements look at: right answers, wrong ones, and notebooks handed in."""
