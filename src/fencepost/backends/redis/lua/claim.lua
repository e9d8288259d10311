-- Whether the holder holds the lock. It changes nothing.
-- KEYS: lock
-- ARGV: holder
-- Answers: {token, ms left}, or 0 if it does not hold.
local owner, token = string.match(redis.call('GET', KEYS[1]) or '', '^(.*):(%d+)$')
if owner ~= ARGV[1] then return 0 end
return {token, redis.call('PTTL', KEYS[1])}
