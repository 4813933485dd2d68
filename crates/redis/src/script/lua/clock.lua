-- The server's time in microseconds, read once for all decisions of this call. It is below 2^53 until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Whether this clock has shown a later time than now, so that values may come from its future. Rust replaces the `false`.
local went_back = false
-- Converts a moment (microseconds) to whole milliseconds for PXAT. The key exists until that millisecond has passed.
local function pxat(moment) return string.format('%.0f', math.ceil(moment / 1000)) end
