"""What people look at: tables and progress, made from observations. Pure: values in, rich renderables out."""
