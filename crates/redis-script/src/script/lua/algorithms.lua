-- The algorithm of a letter. A call makes the functions of those that it asks for.
local algorithms, makers = {}, {}
local function algorithm(letter)
  local made = algorithms[letter]
  if not made then
    made = makers[letter]()
    algorithms[letter] = made
  end
  return made
end
