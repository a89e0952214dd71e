"""Lists the parts of a source and collects facts about the inputs."""
