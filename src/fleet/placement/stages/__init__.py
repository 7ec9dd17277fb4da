"""One file a stage; the file's name is the stage's name. `fleet.placement.stage` walks this folder."""
