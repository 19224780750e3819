"""The messages for a database that fails."""

AWAY = "The database does not answer; try again."
DAMAGED = "The hall's database is damaged. Its log names the file, and the commands that restore a backup."
