-- For tests: the time comes as the last argument (sixteen digits, microseconds), and keys stay while it stands still.
local time = {string.sub(ARGV[#ARGV], 1, 10), string.sub(ARGV[#ARGV], 11)}
local now = time[1] * 1000000 + time[2]
local function pxat() return '32503680000000' end
