return function(p, v, cost)
  local start, count = p.current(p, v)
  if count == 0 or count == 9007199254740992 then return v end
  return (p.written(p, start, math.max(count - cost, 0)))
end
