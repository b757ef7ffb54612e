"""PipeCD: one continuous-delivery system for every kind of application."""
