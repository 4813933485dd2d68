-- Takes the id of the oldest open reservation of a key out of those that are found by their age. The reply: the time, and the id.
local oldest = redis.call('ZRANGE', KEYS[1], string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, 1)
if oldest[1] then redis.call('ZREM', KEYS[1], oldest[1]) end
return {time[1], time[2], oldest}
