"""The API that users write against: the kinds of trimtab.dev/v1alpha1, their schema, conditions and conversions."""
