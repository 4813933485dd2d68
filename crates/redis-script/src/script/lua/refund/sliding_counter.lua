return function(p, v, cost)
  local start, previous, current = p.open(v)
  local window, elapsed = p[2], math.max(now - start, 0)
  if elapsed >= 2 * window then
    previous, current, elapsed = 0, 0, elapsed % window
  elseif elapsed >= window then
    previous, current, elapsed = current, 0, elapsed - window
  end
  if previous + current == 0 then return v end
  local here = math.min(current, cost)
  current, previous = current - here, math.max(previous - (cost - here), 0)
  if now > start then start = now - elapsed end
  return p.close(start, previous, current)
end
