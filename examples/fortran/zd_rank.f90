! Write the stored objects of one rank of an output of zarr_dask: examples/c/zd_rank.h for Fortran.
! Arrays are laid out as in C: the first dimension in Fortran is the last one in Zarr, and the steps
! of a block are its last dimension.
module zd_rank
    use, intrinsic :: iso_c_binding
    implicit none
    private
    public :: zd_attach, zd_detach, zd_error, zd_stored, zd_write, zd_checksum

    integer(c_int), parameter :: zd_checksum = 1

    interface
        function c_attach(store, group, rank, flags) bind(c, name="zd_attach") result(out)
            import :: c_ptr, c_char, c_int
            character(kind=c_char), intent(in) :: store(*), group(*)
            integer(c_int), value :: rank, flags
            type(c_ptr) :: out
        end function
        function c_stored(out, array) bind(c, name="zd_stored") result(steps)
            import :: c_ptr, c_char, c_long
            type(c_ptr), value :: out
            character(kind=c_char), intent(in) :: array(*)
            integer(c_long) :: steps
        end function
        function c_write(out, array, index, first, last, objects, ndim, coords, data, nbytes) &
                bind(c, name="zd_write") result(failed)
            import :: c_ptr, c_char, c_int, c_long, c_size_t
            type(c_ptr), value :: out
            character(kind=c_char), intent(in) :: array(*)
            integer(c_long), value :: index, first, last
            integer(c_int), value :: objects, ndim
            integer(c_long), intent(in) :: coords(*)
            type(c_ptr), intent(in) :: data(*)
            integer(c_size_t), value :: nbytes
            integer(c_int) :: failed
        end function
        subroutine zd_detach(out) bind(c)
            import :: c_ptr
            type(c_ptr), value :: out
        end subroutine
        function c_error() bind(c, name="zd_error") result(text)
            import :: c_ptr
            type(c_ptr) :: text
        end function
        function c_length(text) bind(c, name="strlen") result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function
    end interface

contains

    ! Join an output as a rank that no other running process is; not associated if that failed.
    function zd_attach(store, group, rank, flags) result(out)
        character(*), intent(in) :: store, group
        integer, intent(in) :: rank, flags
        type(c_ptr) :: out
        out = c_attach(trim(store)//c_null_char, trim(group)//c_null_char, &
            int(rank, c_int), int(flags, c_int))
    end function

    ! Number of steps of an array that this rank has stored: where it goes on after a restart.
    function zd_stored(out, array) result(steps)
        type(c_ptr), intent(in) :: out
        character(*), intent(in) :: array
        integer(c_long) :: steps
        steps = c_stored(out, trim(array)//c_null_char)
    end function

    ! Write the stored object of this rank at an index along the steps; true if that worked.
    ! It holds the steps from first up to, but not including, last. coords are those of the object
    ! in a step, in the order of Zarr; data is c_loc of the elements, nbytes long.
    function zd_write(out, array, index, first, last, coords, data, nbytes) result(worked)
        type(c_ptr), intent(in) :: out, data
        character(*), intent(in) :: array
        integer(c_long), intent(in) :: index, first, last, coords(:)
        integer(c_size_t), intent(in) :: nbytes
        logical :: worked
        worked = c_write(out, trim(array)//c_null_char, index, first, last, 1_c_int, &
            size(coords, kind=c_int), coords, [data], nbytes) == 0
    end function

    ! What has failed last.
    function zd_error() result(text)
        character(:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: n
        call c_f_pointer(c_error(), letters, [c_length(c_error())])
        allocate (character(size(letters)) :: text)
        do n = 1, size(letters)
            text(n:n) = letters(n)
        end do
    end function
end module
