-- One reading of the server's time for everything that this call decides, in microseconds: below 2^53 until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- A moment (microseconds) as Redis wants it for a key's end: whole milliseconds. A key is there until that one has passed.
local function pxat(moment) return string.format('%.0f', math.ceil(moment / 1000)) end
