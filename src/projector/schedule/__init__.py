"""Pipeline schedules: orders of operations, their replay, and what they hold in memory."""
