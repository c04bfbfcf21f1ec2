"""What gunicorn reads by itself. Names that a version does not know are ignored."""

# It would make a folder in the home directory.
control_socket_disable = True
