-- For tests: the last argument is the time (sixteen digits, microseconds), and keys do not expire while it stands still.
local time = {string.sub(ARGV[#ARGV], 1, 10), string.sub(ARGV[#ARGV], 11)}
local now = time[1] * 1000000 + time[2]
-- Whether this clock has shown a later time than now, so that values may come from its future. Rust replaces the `false`.
local went_back = false
local function pxat() return '32503680000000' end
