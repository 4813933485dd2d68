-- Ends the block of a key by its rule, and forgets the denials that count. The reply says whether the key was blocked.
local value = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return value and #value == 19 and struct.unpack('<I7', value) > now and 1 or 0
