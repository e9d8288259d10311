-- Make sure that the holder neither holds, nor shares, nor waits.
-- KEYS: lock, queue, gone, counter
-- ARGV: holder, entry in the queue, ms for which a request of its that arrives late is refused (0: none can),
--       a token under which it may go on holding all the same ('': none)
-- Returns who else holds the lock, or 1.
-- needs: clock, mint, alive, cover, hand_over, settle
local holder = ARGV[1]
local waited = redis.call('ZREM', KEYS[2], ARGV[2]) == 1
local value = redis.call('GET', KEYS[1])
local other = 1
if value == ':0' then
    local shares = KEYS[1] .. '\31shares'
    for _, own in ipairs(waited and {} or redis.call('ZRANGE', shares, 0, -1)) do
        local owner, token = string.match(own, '^(.*):(%d+)$')
        if owner == holder and token ~= ARGV[4] then redis.call('ZREM', shares, own) end
    end
    -- One who waited may have stood in the way of others who may share.
    settle(KEYS[1], KEYS[2], KEYS[4], value)
elseif value then
    local owner, token = string.match(value, '^(.*):(%d+)$')
    if owner ~= holder then
        other = owner or value
    elseif not waited and token ~= ARGV[4] then
        hand_over(KEYS[1], KEYS[2], KEYS[4])
    end
end
-- After that, and without raising: a Redis that is out of memory refuses to remember, and must free all the same.
if ARGV[3] ~= '0' and type(redis.pcall('SADD', KEYS[3], holder)) == 'number' then
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
return other
