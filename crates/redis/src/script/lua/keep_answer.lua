-- Keeps the answer of a joint decision: its time, and for each limit whether it admits, the length of its value before plus one
-- (0 without a value), and the value. A call that found a key of another kind took nothing, and is not kept.
local kept = (admitted or ARGV[3 * count + 2] ~= 'admissions') and {struct.pack('<I8', now)} or nil
for i, part in ipairs(parts) do
  local before = replies[i]
  if type(before) == 'number' then kept = nil end
  if not kept then break end
  kept[i + 1] = struct.pack('<I1I4', part.fits and 1 or 0, before and #before + 1 or 0) .. (before or '')
end
if kept then redis.call('SET', KEYS[count + 1], table.concat(kept), 'PX', ARGV[3 * count + 1]) end
