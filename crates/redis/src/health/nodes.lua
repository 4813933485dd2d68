local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGE', KEYS[1], -1000, -1, 'WITHSCORES')
local told = {}
for at = 1, #found, 2 do
  told[at] = found[at]
  told[at + 1] = now - found[at + 1]
end
return told
