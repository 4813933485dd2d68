-- One reading of the server's time for everything that this call decides, in microseconds: below 2^53 until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- A key lives until its limit is as good as new. Redis counts whole milliseconds from the start of the call's own
-- millisecond: one more than rounding up, or a state could be forgotten while it still binds.
local function px(reset) return math.ceil(reset / 1000) + 1 end
