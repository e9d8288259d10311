-- Make sure that the holder neither holds nor waits.
-- KEYS: lock, queue, gone, counter
-- ARGV: holder, entry in the queue, ms for which a request of its that arrives late is refused (0: none can),
--       a token under which it may go on holding all the same ('': none)
-- needs: clock, mint, tell, hand_over
local holder = ARGV[1]
if ARGV[3] ~= '0' then
    redis.call('SADD', KEYS[3], holder)
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
if redis.call('ZREM', KEYS[2], ARGV[2]) == 0 then
    local value = redis.call('GET', KEYS[1])
    local owner, token = string.match(value or '', '^(.*):(%d+)$')
    if owner == holder and token ~= ARGV[4] then hand_over(KEYS[1], KEYS[2], KEYS[4]) end
end
return 1
