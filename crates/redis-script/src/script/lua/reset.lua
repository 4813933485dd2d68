-- Forgets what a key has used, and a block by its rule (KEYS[3], if the rule blocks), and remembers when for two days: units of reservations from before do not return. That is the longest
-- time to live of a reservation, and as long for a late settlement.
redis.call('SET', KEYS[2], string.format('%.0f', now), 'PX', 172800000)
return redis.call('DEL', KEYS[1], KEYS[3] or KEYS[1])
