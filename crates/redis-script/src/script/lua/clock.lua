-- The server's time in microseconds, read once for all decisions of this call. It is below 2^53 until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Whether this clock has shown a later time than now, so that values may come from its future. Rust replaces the `false`.
local went_back = false
-- Converts a moment (microseconds) to whole milliseconds for PXAT. The key exists until that millisecond has passed.
local function pxat(moment) return string.format('%.0f', math.ceil(moment / 1000)) end
-- The code for a value that is not of this limit: 2, or 128 and the version of Tidegate's format that wrote it. Later versions
-- give their values a length that this one does not accept, and 255 and their number as the seventh and eighth byte.
local function foreign(value)
  if #value < 8 or string.byte(value, 7) ~= 255 then return 2 end
  return 128 + math.min(string.byte(value, 8), 127)
end
