"""The training that the samples and the tests on kind run."""
