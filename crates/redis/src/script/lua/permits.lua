-- Gives permits back, or holds them anew from now on. A permit is known by the time at which it was taken: permits of one
-- time are as good as each other. One that has expired is not given back: its place may be another's already.
-- KEYS: the limit's key. ARGV: the hold, 1 to hold anew, the times. The reply has a new time for each, or 0.
local lifetime, renew = tonumber(ARGV[1]), ARGV[2] == '1'
local value = redis.call('GET', KEYS[1]) or ''
if #value % 8 > 0 then return {time[1], time[2], 2} end
local seen = now
if value ~= '' then seen = math.max(now, (struct.unpack('<I8', value, #value - 7))) end
local first, replies, added = 1, {}, ''
while first <= #value and seen - struct.unpack('<I8', value, first) >= lifetime do first = first + 8 end
local before = #value
value = string.sub(value, first)
for n = 1, #ARGV[3] / 8 do
  local wanted = string.sub(ARGV[3], 8 * n - 7, 8 * n)
  replies[n] = '0'
  for at = 1, #value, 8 do
    if string.sub(value, at, at + 7) == wanted then
      value = string.sub(value, 1, at - 1) .. string.sub(value, at + 8)
      replies[n] = string.format('%.0f', seen)
      if renew then added = added .. struct.pack('<I8', seen) end
      break
    end
  end
end
value = value .. added
if value == '' then
  redis.call('DEL', KEYS[1])
elseif added ~= '' or #value < before then
  redis.call('SET', KEYS[1], value, 'PXAT', pxat(struct.unpack('<I8', value, #value - 7) + lifetime))
end
return {time[1], time[2], replies}
