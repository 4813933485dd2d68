-- The units of a reservation that were taken before: the last argument has for each limit 16 bytes, the cost and when it was taken.
local parts, admitted = {}, true
for at = 1, #ARGV[6], 16 do
  local cost, taken = struct.unpack('<I8I8', ARGV[6], at)
  parts[#parts + 1] = {fits = true, cost = cost, log = {seen = taken}}
end
