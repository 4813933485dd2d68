-- The ids of open reservations whose time is over, at most 100, and the number of all open ones.
local due = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 100)
return {time[1], time[2], {redis.call('ZCARD', KEYS[1]), unpack(due)}}
