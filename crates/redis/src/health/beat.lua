local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone = tonumber(ARGV[2])
local newest = redis.pcall('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local stored, removed = newest[2] and tonumber(newest[2]) or 0, 0
-- The year 2100. Only a defect stores a later time while the server's clock shows an earlier one.
local LAST = 4102444800000
if stored >= LAST and now < LAST then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], LAST, '+inf')
  stored, removed = 0, stored
end
local latest = math.max(tonumber(ARGV[3]), stored)
local ahead = latest - now > tonumber(ARGV[4])
if ahead then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now + gone), '+inf')
  redis.call('ZADD', KEYS[1], string.format('%.0f', latest), 'clock')
else
  redis.call('ZADD', KEYS[1], 'XX', 0, 'clock')
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now - gone))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ahead and math.max(gone, latest - now) or gone))
return {redis.call('ZCARD', KEYS[1]) - (ahead and 1 or 0), now, latest, removed}
