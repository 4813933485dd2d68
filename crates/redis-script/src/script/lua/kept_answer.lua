-- The answer of a joint decision as text: its time, and for each limit whether it admits, the length of its value before plus one
-- (0 without a value), and the value. A call that found a key of another kind took nothing, and has none.
local function kept_answer()
  local kept = {struct.pack('<I8', now)}
  for i, part in ipairs(parts) do
    local before = replies[i]
    if type(before) == 'number' then return end
    kept[i + 1] = struct.pack('<I1I4', part.fits and 1 or 0, before and #before + 1 or 0) .. (before or '')
  end
  return table.concat(kept)
end
