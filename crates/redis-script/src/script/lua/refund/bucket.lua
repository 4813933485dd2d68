-- For the token bucket and the leaky bucket.
return function(p, v, cost)
  -- A shut token bucket does not say how much it owes: see token_bucket.lua.
  local rule = p.rule and string.sub(v, -#p.rule) or ''
  local above = p.rule and string.byte(rule, 7) or 0
  if above >= 16 and above < 48 then return v end
  local tat, part = 0, 0
  if p[3] == 0 then tat = struct.unpack('<I7', v) else tat, part = struct.unpack(p.head, v) end
  if part >= p[6] then tat, part = tat + 1, 0 end
  if tat < now or tat == now and part == 0 then return v end
  local span, span_part = span_of(p, cost)
  local debt = tat - now - span
  part = part - span_part
  if part < 0 then debt, part = debt - 1, part + p[6] end
  if debt < 0 then debt, part = 0, 0 end
  return (p[3] == 0 and struct.pack('<I7', now + debt) or struct.pack(p.head, now + debt, part)) .. rule
end
